"""Keys, certificates, tokens: who comes, and how that is renewed and withdrawn while `vipwire up` runs."""
