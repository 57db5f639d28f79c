"""What people read: tables and JSON."""
