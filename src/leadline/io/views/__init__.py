"""Several posed pictures as files: lists of views, and depth maps in the formats that trainers of radiance fields read."""
