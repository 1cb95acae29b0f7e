"""The contenders of `mjolnir bench kernel`: this kernel, its peers, and the card's own read ceiling."""
