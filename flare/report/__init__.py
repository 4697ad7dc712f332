"""Tables and plots: they take data and return renderables, and print nothing."""
