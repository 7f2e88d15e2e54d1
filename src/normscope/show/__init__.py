"""Results for people: terminal tables, plots, pages, widgets."""
