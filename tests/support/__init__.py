"""What several tests share: stand-ins, generators, clients and paths."""
