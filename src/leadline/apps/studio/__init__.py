"""`leadline studio`: a page in the browser for one scene at a time, served by this process alone."""
