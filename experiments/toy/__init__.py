"""The smallest study that goes round the whole circle: seconds long, used to see that an installation learns."""
