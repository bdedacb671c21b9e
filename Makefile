# Everything that is done with this repository, by the words that people and CI use.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
MDBOOK ?= mdbook
# The longest that the tests may take. In the foreground, so that Ctrl-C reaches them; whatever ends
# them, they leave no mounts and no daemons behind (xtask/src/test/guard.rs).
TEST_MINUTES ?= 20
TEST_LONG_MINUTES ?= 40
# Suites with mounts need /dev/fuse. Fail points cost nothing where no test sets one.
FEATURES = $(if $(wildcard /dev/fuse),--all-features,--features forebay/failpoints)
SITE = $(or $(CARGO_TARGET_DIR),target)/site
RELEASE = $(or $(CARGO_TARGET_DIR),target)/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

.DEFAULT_GOAL := help
.PHONY: help demo test test-long build sdk mpiio bench papers site check install uninstall clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Show what Forebay does: slow disk, cache, plot (root, about 2 minutes after the build)
	bench/demo.sh

test: ## Run the tests (root for those with mounts; about 6 minutes on two cores)
	FOREBAY_TEST_SET=quick timeout --foreground --kill-after=30 $(TEST_MINUTES)m $(CARGO) xtask test $(FEATURES)

test-long: ## Run the tests that take long (about 10 minutes on two cores)
	FOREBAY_TEST_SET=long timeout --foreground --kill-after=30 $(TEST_LONG_MINUTES)m $(CARGO) xtask test $(FEATURES)

build: ## Build the release binaries
	$(CARGO) build --release -p forebay -p forebay-bench

sdk: ## Build the library for programs that save their state themselves
	mkdir -p $(RELEASE)
	$(CC) -O2 -Wall -Wextra -fPIC -c sdk/c/forebay_checkpoint.c -o $(RELEASE)/forebay_checkpoint.o
	$(AR) rcs $(RELEASE)/libforebay_checkpoint.a $(RELEASE)/forebay_checkpoint.o

mpiio: ## Build the libraries for MPI programs, for each MPI that is installed
	$(CARGO) build --release -p forebay-mpiio
	crates/mpiio/shim/each.sh $(RELEASE)

bench: build ## Measure against peers and with real programs (root, long)
	SKIP_BUILD=1 bench/peers.sh meta hit newfile
	SKIP_BUILD=1 bench/programs.sh

papers: build ## Run what the papers claim again: models (minutes); with REAL=1 real mounts too (root, 45 minutes)
	bench/papers.sh $(if $(REAL),real)

site: ## Make a site of the documents in target/site/book (needs mdbook; MDBOOK=... names it)
	@command -v $(MDBOOK) >/dev/null || { echo "mdbook is missing: cargo install mdbook, or give MDBOOK=/path/to/mdbook" >&2; exit 1; }
	$(CARGO) xtask site $(SITE)
	$(MDBOOK) build $(SITE)

check: ## Formatting, lints and rules, as CI wants them
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) xtask tidy
	$(CARGO) xtask audit

install: build sdk ## Install to PREFIX (/usr/local), with man pages and completions
	install -Dm755 $(RELEASE)/forebay $(DESTDIR)$(PREFIX)/bin/forebay
	install -d $(DESTDIR)/sbin $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	ln -sf $(PREFIX)/bin/forebay $(DESTDIR)/sbin/mount.forebay
	$(RELEASE)/forebay man $(DESTDIR)$(PREFIX)/share/man/man1
	$(RELEASE)/forebay completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/forebay
	sed 's|/usr/local|$(PREFIX)|' dist/systemd/forebay@.service | \
		install -Dm644 /dev/stdin $(DESTDIR)/etc/systemd/system/forebay@.service
	install -Dm644 dist/systemd/forebay@.service.d/network.conf \
		$(DESTDIR)$(PREFIX)/share/doc/forebay/network.conf
	install -Dm644 sdk/c/forebay_checkpoint.h $(DESTDIR)$(PREFIX)/include/forebay_checkpoint.h
	install -Dm644 $(RELEASE)/libforebay_checkpoint.a $(DESTDIR)$(PREFIX)/lib/libforebay_checkpoint.a
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' sdk/c/forebay-checkpoint.pc.in | \
		install -Dm644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/pkgconfig/forebay-checkpoint.pc
	install -Dm644 sdk/python/forebay_checkpoint.py $(DESTDIR)$(PREFIX)/share/forebay/python/forebay_checkpoint.py
	install -Dm644 dist/forebay.toml $(DESTDIR)$(PREFIX)/share/doc/forebay/forebay.toml

uninstall: ## Remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/forebay $(DESTDIR)/sbin/mount.forebay
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/forebay*.1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions/forebay
	rm -f $(DESTDIR)/etc/systemd/system/forebay@.service
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/forebay $(DESTDIR)$(PREFIX)/share/forebay/python
	rm -f $(DESTDIR)$(PREFIX)/include/forebay_checkpoint.h $(DESTDIR)$(PREFIX)/lib/libforebay_checkpoint.a
	rm -f $(DESTDIR)$(PREFIX)/lib/pkgconfig/forebay-checkpoint.pc

clean: ## Remove what was built
	$(CARGO) clean
