"""The rows of the table of users' reports, a module for each subject."""
