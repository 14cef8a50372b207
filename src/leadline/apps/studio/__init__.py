"""The web page of `leadline studio`, on which one scene at a time is completed and inspected."""
