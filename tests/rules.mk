TEST_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/lib/fuzz_replay_main.c,$(wildcard tests/lib/*.c)))
SIM_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(wildcard tests/sim/test_*.c),$(wildcard tests/sim/*.c)))
UNIT_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/*/test_*.c))
SIM_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/sim/test_*.c))
FUZZ_TARGETS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/*.c))
SYSTEM_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/system/*.c))
SYSTEM_TESTS := $(wildcard tests/system/test_*.py)
BENCHES := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))
TEST_OBJECTS := $(addsuffix .o,$(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS) $(SYSTEM_PROGRAMS) $(BENCHES)) $(TEST_SUPPORT) $(SIM_SUPPORT)

$(TEST_OBJECTS) $(BUILD)/tests/lib/fuzz_replay_main.o: | $(PROTO_HEADERS)
$(BUILD)/tests/%.o: CPPFLAGS_ALL += -Iclient/include

test_libraries = $(BUILD)/libcommd.a
$(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS) $(SYSTEM_PROGRAMS) $(BENCHES): EXTRA_LIBS = -lcmocka $(COMMD_LIBS) -ljansson

$(UNIT_TESTS): %: %.o $(TEST_SUPPORT) $(CLIENT_OBJECTS) $(BUILD)/libcommd.a
	$(link)
$(SIM_TESTS): %: %.o $(SIM_SUPPORT) $(TEST_SUPPORT) $(BUILD)/libcommd.a
	$(link)
$(FUZZ_TARGETS): %: %.o $(BUILD)/tests/lib/fuzz_replay_main.o $(TEST_SUPPORT) $(BUILD)/libcommd.a
	$(link)
$(SYSTEM_PROGRAMS) $(BENCHES): %: %.o $(TEST_SUPPORT) $(CLIENT_OBJECTS) $(BUILD)/libcommd.a
	$(link)

tests: $(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS) $(SYSTEM_PROGRAMS)

run_tests := COMMD_BUILD=$(BUILD) python3 tests/lib/run-tests.py
memory_tests = $(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS)

test: all tests ## every test, ending with one line of counts
	@$(run_tests) $(memory_tests) $(SYSTEM_TESTS)
test-unit: $(UNIT_TESTS) $(FUZZ_TARGETS) ## the unit tests and the fuzz corpora
	@$(run_tests) $^
test-sim: $(SIM_TESTS) ## whole clusters in memory
	@$(run_tests) $^
test-system: all tests ## real daemons and clients
	@$(run_tests) $(SYSTEM_TESTS)
test-memory: $(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS)
	@$(run_tests) $^
check-asan: ## unit, simulation and fuzz corpora under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory VARIANT=asan BUILD=build/asan test-memory
check-tsan: ## the same under ThreadSanitizer
	@$(MAKE) --no-print-directory VARIANT=tsan BUILD=build/tsan test-memory

fuzz: ## build the fuzz targets for libFuzzer (clang), in build/fuzz
	@$(MAKE) --no-print-directory CC=clang BUILD=build/fuzz CFLAGS='-fsanitize=fuzzer-no-link,address' fuzz-link
fuzz-link: $(BUILD)/libcommd.a $(addsuffix .o,$(FUZZ_TARGETS)) $(TEST_SUPPORT)
	@for target in $(notdir $(FUZZ_TARGETS)); do echo "  LINK    $(BUILD)/$$target"; \
	    clang -fsanitize=fuzzer,address -o $(BUILD)/$$target $(BUILD)/tests/fuzz/$$target.o $(TEST_SUPPORT) $(BUILD)/libcommd.a \
	    -lcmocka $(COMMD_LIBS) || exit 1; done

bench: all $(BENCHES) ## the benchmarks that exist
	@for bench in $(BENCHES); do echo "== $$bench"; $$bench || exit 1; done

check-layers: ## every file includes only what stands below it
	@python3 tests/lib/check-layers.py

lint: check-layers all ## formatting, layers, shell scripts, manual pages, units, clang-tidy
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror
	@if command -v shellcheck >/dev/null; then git ls-files '*.sh' .ci/run | xargs shellcheck -S warning; else echo "lint: no shellcheck"; fi
	@if command -v mandoc >/dev/null; then mandoc -T lint -W error $(MAN_PAGES); else echo "lint: no mandoc"; fi
	@python3 tests/lib/check-units.py $(BUILD)/systemd/commd.service systemd/commd.socket
	@if command -v clang-tidy >/dev/null; then clang-tidy --quiet $(COMMD_SOURCES) $(wildcard client/*/*.c) -- -std=gnu17 $(CPPFLAGS_ALL) -Iclient/include; \
	    else echo "lint: no clang-tidy"; fi

.PHONY: tests test test-unit test-sim test-system test-memory check-asan check-tsan fuzz fuzz-link bench check-layers lint
