"""Device programs: what each prepared graph does, from argument frame to completion record."""
