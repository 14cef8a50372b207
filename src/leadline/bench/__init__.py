"""The paper's protocol: which pixels are measured, which are scored, and how."""
