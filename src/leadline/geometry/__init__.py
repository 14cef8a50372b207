"""Cameras, poses, point clouds, projection and motion: arithmetic on arrays, no files."""
