"""What each policy holds, in simulation: traces and made-up users, at three levels of an objective."""
