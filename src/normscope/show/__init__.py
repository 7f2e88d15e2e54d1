"""Results for readers: terminal tables, plots, interactive pages, widgets, HTML reports."""
