"""What happens over time: discrete-event simulation of serving under real traffic."""
