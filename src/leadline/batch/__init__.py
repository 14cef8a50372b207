"""Frames completed from files to files: one frame, a folder, a COLMAP model, a ROS bag; and predictions saved."""
