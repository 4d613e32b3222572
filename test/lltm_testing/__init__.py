"""What the tests share: references and bounds, arguments, and programs to run in other processes."""
