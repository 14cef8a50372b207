"""Completion of files: one frame, a folder, a COLMAP model or a ROS bag; and saving of predictions."""
