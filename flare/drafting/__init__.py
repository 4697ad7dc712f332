"""Where drafts come from: the Drafter contract and its bases, and copies."""
