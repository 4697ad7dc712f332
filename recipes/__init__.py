"""Models, one folder each: target, drafter, stored names. Nothing in `flare/` imports them; configs name them."""
