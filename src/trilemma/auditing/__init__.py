"""The efficiency checklist over a plan and whatever is known of its run: each item passed, failed or not known, with evidence."""
