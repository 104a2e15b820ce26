"""What theorem files share: settings, quantities of a run, instances, rules that set methods."""
