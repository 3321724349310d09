"""Pure decisions: state and event in, new state and instructions out. No I/O, no clock, no chance."""
