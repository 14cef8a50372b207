"""Pictures, diagnostics, figures and HTML reports of completed images and benchmark runs."""
