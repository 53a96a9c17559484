"""Keys, certificates and tokens: authentication, renewal and revocation while `vipwire up` runs."""
