"""Data sets of depth completion: images that come with their own sparse measurements, or with the published crops."""
