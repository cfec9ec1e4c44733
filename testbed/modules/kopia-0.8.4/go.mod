module testbed/kopia-0.8.4

go 1.16

require github.com/kopia/kopia v0.8.4
