"""Cameras, poses, point clouds, projection and motion."""
