"""ROS bags and messages."""
