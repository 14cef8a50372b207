"""Files of several posed pictures: lists of views, and depth in the formats that trainers of radiance fields read."""
