"""The endpoints of OpenAI's interface, over the text service alone."""
