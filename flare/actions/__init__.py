"""What a user can ask for, one file each; `cli.py` imports only the one that was chosen."""
