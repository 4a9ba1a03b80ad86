comma := ,
objects_of = $(patsubst %.c,$(BUILD)/%.o,$1)
programs_of = $(patsubst %.c,$(BUILD)/%,$1)

UNIT_TESTS := $(call programs_of,$(wildcard tests/unit/*/test_*.c))
# Unit tests that start threads themselves, or through commd, the library or the CUDA double. A simulation runs on one
# thread.
STARTS_THREADS := pthread_create|log_writer_start|unmapper_new|dying_new|comm_client_open|client_pair|gpu_pair|staging_nodes|cuda_double|CUDA_DOUBLE
# test_message_staging_end is left out. It forks for each of its many cases, and takes over six minutes under ThreadSanitizer on
# a busy machine. test_message_staging starts the same threads.
THREADED_TESTS := $(call programs_of,$(filter-out %/test_message_staging_end.c,$(shell grep -lE '$(STARTS_THREADS)' tests/unit/*/test_*.c)))
SIM_TESTS := $(call programs_of,$(wildcard tests/sim/test_*.c))
FUZZ_TARGETS := $(call programs_of,$(wildcard tests/fuzz/fuzz_*.c))
# What several fuzz targets share.
FUZZ_SUPPORT_OBJECTS := $(call objects_of,$(filter-out tests/fuzz/fuzz_%,$(wildcard tests/fuzz/*.c)))
SYSTEM_PROGRAMS := $(call programs_of,$(filter-out tests/system/surface_% tests/system/graphs_% tests/system/nccl_%,$(wildcard tests/system/*.c)))
GRAPHS_PARTS := $(call objects_of,$(wildcard tests/system/graphs_*.c))
NCCL_RANK := $(BUILD)/tests/system/nccl_rank
NCCL_CASES := $(BUILD)/tests/system/nccl_cases
NCCL_CASES_PARTS := $(call objects_of,$(filter-out %/nccl_rank.c %/nccl_cases.c,$(wildcard tests/system/nccl_*.c)))
NCCL_PROGRAMS := $(NCCL_RANK) $(NCCL_CASES)
SURFACE_PARTS := $(call objects_of,$(wildcard tests/system/surface_*.c))
SYSTEM_TESTS := $(wildcard tests/system/test_*.py tests/attacks/test_*.py tests/chaos/test_*.py tests/python/test_*.py)
BENCHES := $(call programs_of,$(wildcard tests/bench/*.c))
GPU_PROGRAMS := $(call programs_of,$(wildcard tests/gpu/check_*.c tests/gpu/bench_*.c))
GPU_SUPPORT := $(call objects_of,$(filter-out tests/gpu/check_% tests/gpu/bench_%,$(wildcard tests/gpu/*.c)))
FUZZ_MAIN := $(BUILD)/tests/lib/fuzz_replay_main.o
TEST_SUPPORT := $(filter-out $(FUZZ_MAIN),$(call objects_of,$(wildcard tests/lib/*.c tests/checker/*.c tests/network/*.c)))
SIM_SUPPORT := $(call objects_of,$(filter-out tests/sim/test_%,$(wildcard tests/sim/*.c)))
FAILURE_TEST := $(BUILD)/tests/failures/check_failures
FAILURE_RANK := $(BUILD)/tests/failures/failure_rank
CHAOS_RANK := $(BUILD)/tests/chaos/chaos_rank
CHAOS_PARTS := $(BUILD)/tests/chaos/chaos_steps.o
FAIL_CALLS_OBJECT := $(BUILD)/tests/failures/fail_calls.o
FAIL_PARTS := $(BUILD)/tests/failures/fail_plan.o $(BUILD)/tests/failures/failure_run.o
DOUBLE_OBJECTS := $(call objects_of,$(wildcard tests/cuda_double/*.c))
CUDA_DOUBLE := $(BUILD)/tests/libcuda_double.so
NCCL_DOUBLE := $(BUILD)/tests/libnccl_double.so
TEST_PROGRAMS := $(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS) $(SYSTEM_PROGRAMS) $(NCCL_PROGRAMS) $(BENCHES) $(GPU_PROGRAMS) $(FAILURE_TEST) $(FAILURE_RANK) $(CHAOS_RANK)
HOSTILE_COMMD := $(BUILD)/tests/attacks/hostile_commd
HOSTILE_NETWORK := $(BUILD)/tests/attacks/hostile_network.o
# A loop and sockets that replace those of the daemon in programs that link them.
DATAGRAM_OBJECTS := $(call objects_of,$(wildcard tests/datagrams/*.c))
TEST_OBJECTS := $(FAIL_CALLS_OBJECT) $(FAIL_PARTS) $(CHAOS_PARTS) $(addsuffix .o,$(TEST_PROGRAMS) $(HOSTILE_COMMD)) $(HOSTILE_NETWORK) $(TEST_SUPPORT) $(SIM_SUPPORT) $(SURFACE_PARTS) $(NCCL_CASES_PARTS) $(GPU_SUPPORT) $(DOUBLE_OBJECTS) $(FUZZ_MAIN) $(FUZZ_SUPPORT_OBJECTS) $(DATAGRAM_OBJECTS)

$(TEST_OBJECTS): | $(PROTO_HEADERS)
$(BUILD)/tests/%.o: CPPFLAGS_ALL += -Iclient/include
# These tests compute the kernels' results bit by bit. So the compiler must not contract into fused multiply-add, which is the default on arm64.
$(BUILD)/tests/unit/host/%.o: EXTRA_CFLAGS += -ffp-contract=off

# The compiler takes longer to optimise most of these tests than they take to run, so it does not. Tests of rooms that compute much are left out.
TESTS_THAT_COMPUTE := $(addprefix $(BUILD)/tests/unit/,coll/% host/% kernels/% p2p/% proto/%)
ifeq ($(VARIANT),release)
$(addsuffix .o,$(filter-out $(TESTS_THAT_COMPUTE),$(UNIT_TESTS)) $(FUZZ_TARGETS)): EXTRA_CFLAGS += -O0 -U_FORTIFY_SOURCE
endif

# These are archives, so that the linker puts only the used objects into each program.
$(BUILD)/tests/support.a: $(TEST_SUPPORT)
	$(archive)
FUZZ_SUPPORT := $(BUILD)/tests/fuzz.a
$(FUZZ_SUPPORT): $(FUZZ_SUPPORT_OBJECTS)
	$(archive)
TEST_ARCHIVES := $(BUILD)/tests/support.a $(BUILD)/client/commctl.a $(BUILD)/client/internal.a $(BUILD)/libcommd.a

$(TEST_PROGRAMS): EXTRA_LIBS = -lcmocka -ljansson $(COMMD_LIBS) -lm
# These unit tests run in virtual time.
DATAGRAM_TESTS := $(addprefix $(BUILD)/tests/unit/net/,test_contract test_contract_ends test_contract_connections test_chaos test_quic_datagrams test_quic_healing test_quic_lies test_quic_sessions test_quic_streams test_quic_strangers)
$(filter-out $(DATAGRAM_TESTS),$(UNIT_TESTS)) $(SYSTEM_PROGRAMS) $(BENCHES): %: %.o $(TEST_ARCHIVES)
	$(link)
$(DATAGRAM_TESTS): %: %.o $(DATAGRAM_OBJECTS) $(TEST_ARCHIVES)
	$(link)
$(BUILD)/tests/system/surface: $(SURFACE_PARTS)
$(BUILD)/tests/system/graphs: $(GRAPHS_PARTS)
$(BUILD)/tests/unit/client/test_nccl_config: $(addprefix $(BUILD)/client/nccl/,comm_config.o nccl_version.o failure.o)
# A program that is written for NCCL: it is linked with that library, and with nothing of libcommclient.
$(NCCL_CASES): $(NCCL_CASES_PARTS) $(BUILD)/tests/lib/elements.o $(BUILD)/proto/types.o
$(NCCL_CASES).o $(NCCL_CASES_PARTS): CPPFLAGS_ALL += $(if $(CUDA_INCLUDE),-isystem $(CUDA_INCLUDE))
$(NCCL_PROGRAMS): %: %.o $(BUILD)/proto/cuda_driver.o $(NCCL_LIBRARY)
	$(Q)echo "  LINK    $@" && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(NCCL_LIBRARY)
$(SIM_TESTS): %: %.o $(SIM_SUPPORT) $(DATAGRAM_OBJECTS) $(TEST_ARCHIVES)
	$(link)
$(GPU_PROGRAMS): %: %.o $(GPU_SUPPORT) $(TEST_ARCHIVES)
	$(link)
# LLVM's linker takes half of the time, and there are hundreds of these programs. It refuses the fuzz targets: two files of their archive
# have a clock_gettime().
ifneq ($(builds),)
HAVE_LLD := $(shell echo 'int main(void) { return 0; }' | $(CC) -fuse-ld=lld -x c - -o /dev/null 2>/dev/null && echo yes)
endif
ifneq ($(HAVE_LLD),)
$(UNIT_TESTS) $(SIM_TESTS) $(SYSTEM_PROGRAMS): private LDFLAGS_ALL += -fuse-ld=lld
endif
# hostile_commd contains all of commd. Its own versions of these calls stand between commd and the network.
HOSTILE_CALLS := net_stream_send net_stream_reset frame_decoder_next sendmsg ngtcp2_conn_writev_stream_versioned \
    ngtcp2_conn_extend_max_offset ngtcp2_conn_extend_max_stream_offset ngtcp2_pkt_encode_frame
$(HOSTILE_COMMD): EXTRA_LIBS = $(addprefix -Wl$(comma)--wrap=,$(HOSTILE_CALLS)) $(COMMD_LIBS)
$(HOSTILE_COMMD): $(HOSTILE_COMMD).o $(HOSTILE_NETWORK) $(BUILD)/daemon/commd.o $(BUILD)/libcommd.a
	$(link)
# Calls that a test can make fail once. tests/failures/fail_calls.c wraps them.
FAIL_CALLS := malloc calloc realloc reallocarray aligned_alloc strdup strndup mmap open fcntl socket bind listen connect accept4 \
    socketpair getsockopt setsockopt getsockname send sendmsg recv recvmsg sendmmsg recvmmsg read write poll pipe2 eventfd memfd_create \
    ftruncate fstat chmod timerfd_create timerfd_settime getrandom pthread_create event_add event_base_new_with_config \
    protobuf_c_message_unpack
$(FAILURE_TEST): %: %.o $(FAIL_CALLS_OBJECT) $(FAIL_PARTS) $(TEST_ARCHIVES) | $(FAILURE_RANK) $(BUILD)/commctl
	$(link)
$(FAILURE_RANK): %: %.o $(FAIL_CALLS_OBJECT) $(BUILD)/libcommclient.a
	$(link)
$(CHAOS_RANK): %: %.o $(CHAOS_PARTS) $(BUILD)/libcommclient.a
	$(link)
$(FAILURE_TEST) $(FAILURE_RANK): private LDFLAGS_ALL += $(addprefix -Wl$(comma)--wrap=,$(FAIL_CALLS))
$(BUILD)/tests/fuzz/fuzz_quic $(BUILD)/fuzz_quic: $(BUILD)/tests/datagrams/virtual_loop.o
$(FUZZ_TARGETS): %: %.o $(FUZZ_MAIN) $(FUZZ_SUPPORT) $(TEST_ARCHIVES)
	$(link)

# Builds with other protocol versions, for tests/system/test_versions.py. `next` speaks the version of this release and a next one, as a
# release that adds a version does. `later` speaks that next version alone. Only the files that state the versions are compiled
# again. These libraries are not optimised as a whole: no test measures them.
VERSION_BUILDS := next later
define_of = $(shell sed -n 's/^.define $1 //p' proto/version.h)
next_of = $(shell expr $(call define_of,$1) + 1)
VERSIONS_next = -DCLIENT_PROTOCOL_VERSION=$(call next_of,CLIENT_PROTOCOL_VERSION) -DCLIENT_PROTOCOL_OLDEST=$(call define_of,CLIENT_PROTOCOL_OLDEST) \
    -DMESH_PROTOCOL_VERSION=$(call next_of,MESH_PROTOCOL_VERSION) -DMESH_PROTOCOL_OLDEST=$(call define_of,MESH_PROTOCOL_OLDEST)
VERSIONS_later = $(foreach name,CLIENT MESH,$(foreach end,VERSION OLDEST,-D$(name)_PROTOCOL_$(end)=$(call next_of,$(name)_PROTOCOL_VERSION)))
VERSION_FILES_DAEMON := daemon/api/hello daemon/mesh/message
VERSION_FILES_LIBRARY := client/lib/client
VERSION_FILES_COMMCTL := client/commctl/connection
define version_build
$(BUILD)/versions/$1/%.o: CPPFLAGS_ALL += -Iclient/include $(VERSIONS_$1)
$(BUILD)/versions/$1/%.o: %.c $(FLAGS_STAMP) | $(PROTO_HEADERS)
	$$(compile)
$(BUILD)/versions/$1/commd: EXTRA_LIBS = $(COMMD_LIBS)
$(BUILD)/versions/$1/commd: $(VERSION_FILES_DAEMON:%=$(BUILD)/versions/$1/%.o) $(BUILD)/daemon/commd.o $(BUILD)/libcommd.a
	$$(link)
$(BUILD)/versions/$1/commctl: EXTRA_LIBS = $(COMMCTL_LIBS)
$(BUILD)/versions/$1/commctl: $(VERSION_FILES_COMMCTL:%=$(BUILD)/versions/$1/%.o) $(BUILD)/client/commctl/main.o $(BUILD)/client/commctl.a $(BUILD)/client/internal.a $(PROTO_OBJECTS)
	$$(link)
$(BUILD)/versions/$1/libcommclient.so: LTO_LDFLAGS_$(VARIANT) = $(NO_LTO_$(VARIANT))
$(BUILD)/versions/$1/libcommclient.so: $(VERSION_FILES_LIBRARY:%=$(BUILD)/versions/$1/%.o) $(filter-out $(VERSION_FILES_LIBRARY:%=$(BUILD)/%.o),$(CLIENT_OBJECTS)) $(PROTO_OBJECTS) client/lib/libcommclient.map
	$$(link_library)
endef
$(foreach name,$(VERSION_BUILDS),$(eval $(call version_build,$(name))))
VERSION_PROGRAMS := $(foreach name,$(VERSION_BUILDS),$(addprefix $(BUILD)/versions/$(name)/,commd commctl libcommclient.so))

# make hops: the program and the tracer that show which functions a program of VARIANT=hops enters and leaves.
HOPS_RANK := $(BUILD)/tests/hops/hops_rank
HOPS_TRACER := $(BUILD)/tests/hops/tracer.so
$(HOPS_RANK): EXTRA_LIBS = -lprotobuf-c
$(HOPS_RANK): %: %.o $(BUILD)/libcommclient.a
	$(link)
$(HOPS_TRACER): tests/hops/tracer.c $(FLAGS_STAMP)
	$(Q)mkdir -p $(@D) && echo "  LINK    $@" && $(CC) -shared -std=gnu17 -D_GNU_SOURCE -O2 -fPIC -pthread $(WARNINGS) -o $@ $<

# A double of the CUDA driver and of NCCL: one library under two names. tests/cuda_double/cuda_double.h says what it
# does.
$(CUDA_DOUBLE): $(DOUBLE_OBJECTS) $(BUILD)/libcommd.a
	$(Q)mkdir -p $(@D) && echo "  LINK    $@" && $(CC) -shared $(NO_LTO_$(VARIANT)) $(LDFLAGS_SHARED) $(no_undefined_$(VARIANT)) -o $@ $(filter %.o %.a,$^) -lm
$(NCCL_DOUBLE): $(CUDA_DOUBLE)
	$(Q)ln -sf $(<F) $@

# The GPU kernels, compiled for the host by the same compiler. They need no C++ library here.
ifneq ($(builds),)
HAVE_HOST_KERNELS := $(shell echo | $(CC) -x c++ -std=c++17 -fsyntax-only - 2>/dev/null && echo yes)
endif
CXXFLAGS_ALL = $(patsubst -std=%,-std=c++17,$(CFLAGS_ALL)) -Og -fno-exceptions -fno-rtti -nostdinc++ -ffp-contract=off \
    $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARNINGS))
KERNEL_TEST := $(BUILD)/tests/unit/kernels/test_kernels
$(BUILD)/tests/unit/kernels/host_kernels.o: tests/unit/kernels/host_kernels.cc $(FLAGS_STAMP)
	$(Q)mkdir -p $(@D) && echo "  CXX     $<" && $(CC) -x c++ $(CPPFLAGS_ALL) $(CXXFLAGS_ALL) -MMD -MP -c -o $@ $<
ifneq ($(HAVE_HOST_KERNELS),)
$(KERNEL_TEST).o: EXTRA_CFLAGS += -DHAVE_HOST_KERNELS
$(KERNEL_TEST): $(BUILD)/tests/unit/kernels/host_kernels.o
endif

# Compares the project's own declarations of CUDA and NCCL with a toolkit's headers, if a toolkit is installed.
ifneq ($(wildcard $(CUDA_INCLUDE)/cuda.h),)
INTERFACES_CHECKED := $(BUILD)/tests/gpu/check_interfaces.o $(BUILD)/tests/gpu/check_nccl_api.o
$(INTERFACES_CHECKED): $(BUILD)/%.o: %.cc $(FLAGS_STAMP)
	$(Q)mkdir -p $(@D) && echo "  CXX     $<" && \
	    $(CUDA_HOST_COMPILER) -std=c++17 -I. -isystem $(CUDA_INCLUDE) -Wall -Wextra -Wno-invalid-offsetof -Werror -MMD -MP -c -o $@ $<
endif

# A sanitized program takes several times as long. Sanitizers of gcc and clang need an address space with little
# randomization, so setarch -R turns that off.
test_timeout_s := $(if $(filter release,$(VARIANT)),300,1200)
fixed_addresses := $(if $(filter asan tsan,$(VARIANT)),$(shell setarch -R true 2>/dev/null && echo setarch -R))
run_tests := COMMD_BUILD=$(abspath $(BUILD)) COMMD_TEST_TIMEOUT_S=$${COMMD_TEST_TIMEOUT_S:-$(test_timeout_s)} \
    $(fixed_addresses) python3 tests/lib/run-tests.py
MEMORY_TESTS := $(UNIT_TESTS) $(SIM_TESTS) $(FUZZ_TARGETS) $(if $(filter tsan,$(VARIANT)),,$(FAILURE_TEST))

# The program of the benchmark that replays traces (below), which tests/system/test_bench_traces.py runs.
CONTEST_OF_TESTS := $(BUILD)/tests/bench/peers/commd_contest
tests: $(CONTEST_OF_TESTS) $(MEMORY_TESTS) $(SYSTEM_PROGRAMS) $(CHAOS_RANK) $(NCCL_PROGRAMS) $(HOSTILE_COMMD) $(VERSION_PROGRAMS) $(BENCHES) $(NCCL_DOUBLE) $(GPU_PROGRAMS) $(PYTHON_LIBRARY) $(INTERFACES_CHECKED)
$(UNIT_TESTS) $(SIM_TESTS) $(SYSTEM_PROGRAMS): | $(NCCL_DOUBLE)
test-deps:
	@tests/lib/install-deps.sh $(if $(filter check,$(DEPS)),--check) --tests > /dev/null || echo "The tests of the Python package will be skipped."
test: all tests | test-deps ## run every test; the last line counts them
	@$(run_tests) $(MEMORY_TESTS) $(SYSTEM_TESTS)
test-unit: $(UNIT_TESTS) $(FUZZ_TARGETS) ## run the unit tests and replay the fuzz corpora
	@$(run_tests) $^
test-sim: $(SIM_TESTS) ## run whole clusters in memory
	@$(run_tests) $^
check-sim: $(addprefix $(BUILD)/tests/sim/,test_property test_traffic) ## draw 100,000 cases of each kind at random and run them in memory (an hour)
	@export COMMD_CASES=$${COMMD_CASES:-100000} COMMD_TEST_TIMEOUT_S=$${COMMD_TEST_TIMEOUT_S:-14400}; $(run_tests) $^
# A program's lines with "#" have the figures.
SIM_FAULTS := $(addprefix $(BUILD)/tests/sim/,test_outages test_tree_majority test_verdicts)
check-sim-faults: $(SIM_FAULTS) ## make 100 outages of each kind and 1,000 losses of each kind in memory (a quarter of an hour)
	@for program in $(filter-out %verdicts,$^); do COMMD_CASES=100 $$program || exit; done; COMMD_CASES=1000 $(filter %verdicts,$^)
check-failures: ## fail the allocations and system calls of commd and the library at each call site, under AddressSanitizer (FAILURES=100|sites|all)
	@$(MAKE) VARIANT=asan BUILD=$(call folder_of,asan) run-failures
run-failures: $(FAILURE_TEST)
	@export COMMD_FAILURES=$(or $(FAILURES),sites) COMMD_TEST_TIMEOUT_S=36000; $(run_tests) $<
test-system: all $(CONTEST_OF_TESTS) $(SYSTEM_PROGRAMS) $(CHAOS_RANK) $(NCCL_PROGRAMS) $(HOSTILE_COMMD) $(VERSION_PROGRAMS) $(NCCL_DOUBLE) $(PYTHON_LIBRARY) | test-deps ## run real daemons and clients
	@$(run_tests) $(SYSTEM_TESTS)
test-python: all $(PYTHON_LIBRARY) | test-deps ## run the tests of the Python package
	@$(run_tests) $(wildcard tests/python/test_*.py)
bench-python: all $(BUILD)/tests/bench/bench_small ## measure the Python package beside the C library (half a minute)
	@COMMD_BUILD=$(abspath $(BUILD)) $$(for python in "$${COMMD_PYTHON:-python3}" /usr/bin/python3; do $$python -c 'import numpy' 2>/dev/null && echo $$python && break; done) \
	    tests/bench/bench_python.py $(BENCH_OPTIONS)
ONLY ?=
check-attacks: all $(HOSTILE_COMMD) ## attack real daemons beside a pair of ranks and hold commd to the bars (10 minutes; ONLY=name,...)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/attacks/check_attacks.py --out $(BUILD)/attacks.json $(if $(ONLY),--only $(ONLY))
NODES ?= 3
RANKS ?= 2
# SECONDS and SEED also belong to other targets, which have other defaults.
CHAOS_OPTIONS = --nodes $(NODES) --ranks $(RANKS) --seconds $(or $(CHAOS_SECONDS),300) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) \
    $(if $(FAULTS),--faults $(FAULTS)) $(if $(KINDS),--kinds $(KINDS)) $(if $(QUICK),--quick) $(if $(filter-out release,$(VARIANT)),--slow 10)
check-chaos: CHAOS_SECONDS := $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS))
check-chaos: CHAOS_SEED := $(if $(filter command line environment,$(origin SEED)),$(SEED))
check-chaos: all $(CHAOS_RANK) ## faults of a seed on real daemons: nothing may be wrong (SECONDS=300 SEED=random NODES=3 RANKS=2 FAULTS=3,7-9 KINDS=... QUICK=1; as root)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/chaos/check_chaos.py $(CHAOS_OPTIONS) || [ $$? = 77 ]
RUNS ?= 10
check-outages: CHAOS_SEED := $(if $(filter command line environment,$(origin SEED)),$(SEED))
check-outages: all $(CHAOS_RANK) ## make each loss and outage RUNS times on real daemons: who is told when, and what it delays (15 minutes; SEED=random NODES=3 RANKS=2 KINDS=...; as root)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/chaos/check_outages.py --runs $(RUNS) --nodes $(NODES) --ranks $(RANKS) \
	    $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(if $(KINDS),--kinds $(KINDS)) $(if $(filter-out release,$(VARIANT)),--slow 10) || [ $$? = 77 ]
check-recovery: CHAOS_SEED := $(if $(filter command line environment,$(origin SEED)),$(SEED))
check-recovery: all ## kill a rank inside operations of 8 bytes to 256 MiB RUNS times: when the others are told, and when they go on (2 minutes; as root)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/chaos/check_recovery.py --runs $(RUNS) --ranks $(RANKS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))
SERVICE_OPTIONS ?=
check-service: ## build the packages, and use them as services in booted containers of Debian 12 and 13 (10 minutes, the first time 20; as root)
	@python3 -B tests/service/check_service.py $(SERVICE_OPTIONS)
ARM64_OPTIONS ?=
check-arm64: ## cross-build for arm64 in a root file system of Debian, run the unit tests under qemu-user, and build the packages (20 minutes; as root)
	@python3 -B tests/service/check_arm64.py $(ARM64_OPTIONS)
HOPS_MAX ?= 50
HOPS_OPTIONS ?=
hops: ## list the calls from file to file that an all-reduce of 8 bytes takes on one node; at most HOPS_MAX=50 may be hops (HOPS_OPTIONS=--hops: these alone)
	@$(MAKE) VARIANT=hops BUILD=$(call folder_of,hops) run-hops
run-hops: $(HOPS_RANK) $(HOPS_TRACER) $(BUILD)/commd $(BUILD)/commctl
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/hops/count_hops.py --most $(HOPS_MAX) --listed-in daemon/README.md $(HOPS_OPTIONS)
test-memory: $(MEMORY_TESTS)
	@$(run_tests) $^
test-threads: $(THREADED_TESTS)
	@$(run_tests) $^

# Targets for a machine with a GPU. Running these programs needs no toolkit and no compiler: tests/gpu/README.md says
# how to build them elsewhere and carry them there. Exit code 77: there is no GPU.
GPU_NEEDED := all $(GPU_PROGRAMS) $(SYSTEM_PROGRAMS) $(NCCL_DOUBLE) $(BUILD)/tests/bench/bench_quic
run_gpu = @COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/gpu/$1 || [ $$? = 77 ]
check-gpu: $(GPU_NEEDED) ## check commd and its kernels on a machine with a GPU (5 minutes; GPU_OPTIONS=--quick: fewer)
	$(call run_gpu,check_gpu.py $(GPU_OPTIONS))
bench-gpu: $(GPU_NEEDED) ## measure commd and its kernels on a machine with a GPU (6 minutes)
	$(call run_gpu,bench_gpu.py --commit $$(git rev-parse --short HEAD 2>/dev/null || echo unknown) $(GPU_OPTIONS))

GPU_CARRIED := $(addprefix $(BUILD)/,commd commctl libcommclient.so examples/overlap tests/bench/bench_quic \
    tests/libcuda_double.so) $(GPU_PROGRAMS) $(filter-out %/relay,$(SYSTEM_PROGRAMS))
LIBRARIES_ANYWHERE := linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc++)[.]so
gpu-bundle: $(GPU_NEEDED) ## what the two above run, and the libraries it needs, in $(BUILD)/gpu, to be carried to such a machine
	$(Q)rm -rf $(BUILD)/gpu && mkdir -p $(BUILD)/gpu/lib
	$(Q)for file in $(GPU_CARRIED:$(BUILD)/%=%); do install -D $(BUILD)/$$file $(BUILD)/gpu/$$file && strip -g $(BUILD)/gpu/$$file || exit; done
	$(Q)ln -s libcuda_double.so $(BUILD)/gpu/tests/libnccl_double.so
	$(Q)ldd $(GPU_CARRIED) | awk '$$2 == "=>" && $$3 ~ /^[/]/ && $$1 !~ /^($(LIBRARIES_ANYWHERE))/ { print $$3 }' | sort -u | \
	    xargs -I% cp -L % $(BUILD)/gpu/lib && du -sh $(BUILD)/gpu

# If BUILD is given, the folders of the other variants stand beside it.
folder_of = $(if $(filter file,$(origin BUILD)),build/$1,$(BUILD)-$1)
check-asan: ## run the unit tests, simulations and corpora under AddressSanitizer and UBSan
	@$(MAKE) VARIANT=asan BUILD=$(call folder_of,asan) test-memory
check-tsan: ## the same under ThreadSanitizer
	@$(MAKE) VARIANT=tsan BUILD=$(call folder_of,tsan) test-memory
# The + lets the script's own makes share the processors of this one.
check-all: ## all tests, the lint, and the tests under sanitizers, one after the other (an hour)
	+@tests/lib/check-all.sh
check-threads: ## run the unit tests that start threads under ThreadSanitizer
	@$(MAKE) VARIANT=tsan BUILD=$(call folder_of,tsan) test-threads

# The fuzz targets use clang's libFuzzer with both sanitizers, in a folder of their own. TARGETS="frame ring" chooses
# targets; without TARGETS all run. The sanitizers keep clang from vectorising loops that ask for it; -Wno-pass-failed
# suppresses the warning about that.
FUZZ_CC ?= clang
SECONDS ?= 60
TARGETS ?=
fuzz_folder = $(call folder_of,fuzz)
fuzz_flags = CC=$(FUZZ_CC) VARIANT=asan BUILD=$(fuzz_folder) CFLAGS='$(CFLAGS) -fsanitize=fuzzer-no-link -Wno-pass-failed'
fuzz: fuzz-runtime ## build the fuzz targets with clang's libFuzzer and run each SECONDS=60 (TARGETS="a b": only those)
	@$(MAKE) $(fuzz_flags) fuzz-programs
	@python3 -B tests/lib/run-fuzz.py run $(fuzz_folder) $(SECONDS) $(TARGETS)
fuzz-merge: fuzz-runtime ## add to tests/fuzz/corpus the fewest inputs that cover all that `make fuzz` found
	@$(MAKE) $(fuzz_flags) fuzz-programs
	@python3 -B tests/lib/run-fuzz.py merge $(fuzz_folder) $(TARGETS)
fuzz-runtime:
	@echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | \
	    $(FUZZ_CC) -fsanitize=fuzzer,address,undefined -x c - -o /dev/null 2>/dev/null || \
	    { echo "fuzz: $(FUZZ_CC) cannot link with -fsanitize=fuzzer,address,undefined: install clang and its runtime" \
	        "(Debian: clang and libclang-rt-14-dev, with clang's version)"; exit 1; }
FUZZERS := $(patsubst $(BUILD)/tests/fuzz/%,$(BUILD)/%,$(FUZZ_TARGETS))
$(FUZZERS): EXTRA_LIBS = -fsanitize=fuzzer -lcmocka -ljansson $(COMMD_LIBS)
$(FUZZERS): $(BUILD)/%: $(BUILD)/tests/fuzz/%.o $(FUZZ_SUPPORT) $(TEST_ARCHIVES)
	$(link)
fuzz-programs: $(if $(TARGETS),$(patsubst %,$(BUILD)/fuzz_%,$(TARGETS:fuzz_%=%)),$(FUZZERS)) ; @:

# The benchmark's program, once for each contestant (tests/bench/peers/contest.h). make builds those of the peers only for the benchmark:
# they need what bench-deps and install.sh install.
PEERS := $(BUILD)/tests/bench/peers
MPIS := build/peers
CONTEST_PARTS := $(addprefix $(PEERS)/,contest.o sweep.o replay.o trace.o)
COMMD_CONTEST := $(CONTEST_OF_TESTS)
$(COMMD_CONTEST): $(PEERS)/commd_contest.o $(CONTEST_PARTS) $(BUILD)/libcommclient.so
	$(Q)echo "  LINK    $@" && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -L$(BUILD) -lcommclient -Wl,-rpath,$(abspath $(BUILD))
INSTALLED_MPIS := $(foreach each,openmpi mpich intelmpi,$(if $(wildcard $(MPIS)/$(each)/installed),$(each)))
PEER_PROGRAMS := $(PEERS)/gloo_contest $(if $(filter openmpi,$(INSTALLED_MPIS)),,$(PEERS)/mpi_contest_system) \
    $(addprefix $(PEERS)/mpi_contest_,$(INSTALLED_MPIS))
$(PEERS)/mpi_contest_%: tests/bench/peers/mpi_contest.c tests/bench/peers/contest.h $(CONTEST_PARTS)
	$(Q)echo "  MPICC   $@" && I_MPI_ROOT=$(abspath $(MPIS)/$*) PATH=$(abspath $(MPIS)/$*)/bin:$$PATH mpicc -O2 -o $@ $< $(CONTEST_PARTS)
$(PEERS)/gloo_contest: tests/bench/peers/gloo_contest.cc tests/bench/peers/contest.h $(CONTEST_PARTS)
	$(Q)echo "  CXX     $@" && $(CXX) -std=c++17 -O2 -o $@ $< $(CONTEST_PARTS) -lgloo -lpthread
bench-deps:
	@tests/lib/install-deps.sh $(if $(filter check,$(DEPS)),--check) --bench $(DEPS_FILE)
	@$(if $(filter check,$(DEPS)),,tests/bench/peers/install.sh $(MPIS))
bench-peers: $(COMMD_CONTEST) $(PEER_PROGRAMS) ; @:
bench: all $(BENCHES) ## measure commd beside Open MPI, MPICH, Intel MPI and Gloo (two hours; QUICK=1: 10 minutes)
	@$(MAKE) bench-deps && $(MAKE) bench-peers && COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/bench/run_bench.py $(if $(QUICK),--quick) $(BENCH_OPTIONS)

bench-messages: all $(BENCHES) ## measure messages from rank to rank beside their bars (3 minutes)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/bench/run_messages.py $(BENCH_OPTIONS)

# BASE's own Makefile builds it, from a copy of that commit's files. The copy stays in build/ab for the next time.
AB_COMMIT = $(shell git rev-parse --short=12 --verify --quiet '$(BASE)^{commit}')
AB_FOLDER = $(abspath build/ab)/$(AB_COMMIT)
define build_base
	$(if $(BASE),,$(error $@: BASE=COMMIT says what to compare with))
	$(if $(AB_COMMIT),,$(error $@: BASE=$(BASE) is no commit))
	$(Q)[ -d $(AB_FOLDER) ] || { mkdir -p $(AB_FOLDER).part && git archive $(AB_COMMIT) | tar -x -C $(AB_FOLDER).part && mv $(AB_FOLDER).part $(AB_FOLDER); }
	$(Q)cd $(AB_FOLDER) && env -u BASE -u MAKELEVEL -u MAKEFLAGS -u MFLAGS $(MAKE) --no-print-directory CC='$(CC)' CUDA='$(CUDA)' DEPS='$(DEPS)' \
	    VARIANT='$(VARIANT)' BUILD='build/$(VARIANT)' CFLAGS='$(CFLAGS)' $(1:$(BUILD)/%=build/$(VARIANT)/%)
endef

ROUNDS ?=
SIZES ?=
TOPOLOGY ?=
SEED ?= 1
AB_NEEDED := $(BUILD)/commd $(BUILD)/commctl $(BUILD)/libcommclient.so
bench-ab: $(AB_NEEDED) ## is this tree as fast as BASE=COMMIT? Both in turn, and the base against itself (8 minutes; QUICK=1: 2.5)
	$(call build_base,$(AB_NEEDED))
	$(Q)COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/bench/run_ab.py $(AB_FOLDER)/build/$(VARIANT) $(abspath $(BUILD)) \
	    --names $(AB_COMMIT),$$(git describe --always --dirty --abbrev=12) --seed $(SEED) --out $(BUILD)/bench/ab.json $(if $(QUICK),--quick) \
	    $(if $(PLAIN),--plain) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIZES),--sizes $(SIZES)) $(if $(TOPOLOGY),--only $(TOPOLOGY))

# abidiff's exit status is a set of bits: 1 and 2 are errors, 4 is any change, 8 is a change that breaks programs.
check-abi: $(BUILD)/libcommclient.so ## can programs built with BASE=COMMIT run with this tree's library? (needs abidiff, of abigail-tools)
	$(call build_base,$(BUILD)/libcommclient.so)
	@command -v abidiff >/dev/null || { echo "check-abi: abidiff is not installed (Debian: abigail-tools)"; exit 1; }
	@abidiff --headers-dir1 $(AB_FOLDER)/client/include --headers-dir2 client/include $(AB_FOLDER)/build/$(VARIANT)/libcommclient.so \
	    $(BUILD)/libcommclient.so; status=$$?; [ $$((status & 11)) = 0 ] && echo "check-abi: programs of $(AB_COMMIT) can use this library" || \
	    { echo "check-abi: programs of $(AB_COMMIT) must be built again, or abidiff failed"; exit 1; }

# ---- Checks that run no program of the project. make names a tool that is not installed, and leaves its check out.

C_FILES = $(shell find proto daemon client kernels tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
# Without the tests: clang-tidy does not know their assertions.
TIDY_FILES = $(filter %.c,$(filter proto/% daemon/% client/%,$(C_FILES)))
SHELL_FILES = $(shell find tests client config systemd .ci -name '*.sh' -o -name '*.bash') systemd/debian/commd.postrm .ci/run
# The code is formatted for this version of LLVM, and passes the checks of this version.
LINT_LLVM ?= 14
with_llvm = @if $1 --version 2>/dev/null | grep -q 'version $(LINT_LLVM)[.]'; then $2; else echo "lint: $1 $(LINT_LLVM) is not installed: left out"; fi
with_tool = @if command -v $1 >/dev/null; then $2; else echo "lint: $1 is not installed: left out"; fi

check-layers: ## check that every file includes only what stands below it
	@python3 tests/lib/check-layers.py
check-sizes: ## print the sizes of rooms and functions beside their bars; no file may be longer than 600 lines, and no function than 60
	@python3 -B tests/lib/check-sizes.py
check-format:
	$(call with_llvm,clang-format,echo $(C_FILES) | xargs clang-format --dry-run -Werror)
format: ## format the C sources
	@echo $(C_FILES) | xargs clang-format -i
check-shell:
	$(call with_tool,shellcheck,shellcheck -S warning $(SHELL_FILES))
check-man: man
	$(call with_tool,mandoc,mandoc -T lint -W warning $(MAN_PAGES))
check-units: $(BUILD)/systemd/commd.service
	@python3 tests/lib/check-units.py $(BUILD)/systemd/commd.service systemd/commd.socket
# The library exports only the API. It needs no libraries but libc and protobuf-c.
check-library: $(BUILD)/libcommclient.so $(BUILD)/libcommclient.a $(NCCL_LIBRARY)
	@! nm -D --defined-only $(NCCL_LIBRARY) | awk '$$3 !~ /^p?nccl[A-Z]|^commd_nccl_drop_in$$/' | grep . || \
	    { echo "libnccl.so.2: exports the above beside NCCL's names"; exit 1; }
ifneq ($(wildcard $(CUDA_INCLUDE)/nccl.h),)
	@! grep -ohE '\bp?nccl[A-Z][A-Za-z0-9]*\(' $(CUDA_INCLUDE)/nccl.h | tr -d '(' | sort -u | \
	    while read -r name; do nm -D --defined-only $(NCCL_LIBRARY) | grep -q " $$name$$" || echo "$$name"; done | grep . || \
	    { echo "libnccl.so.2: lacks the above, which nccl.h declares"; exit 1; }
endif
	@! nm -g --defined-only $(BUILD)/libcommclient.a | awk 'NF == 3 && $$3 !~ /^comm_/' | grep . || \
	    { echo "libcommclient.a: defines the above beside the API"; exit 1; }
	@! nm -D --defined-only $(BUILD)/libcommclient.so | awk '$$3 !~ /^(comm_|COMM)/' | grep . || \
	    { echo "libcommclient.so: exports the above beside the API"; exit 1; }
	@! objdump -p $(BUILD)/libcommclient.so | awk '$$1 == "NEEDED" && $$2 !~ /^(libc|ld-linux.*|libprotobuf-c|libpthread|lib[at]san|libubsan)[.]so/' | grep . || \
	    { echo "libcommclient.so: needs the above beside libc and protobuf-c"; exit 1; }
	$(call with_tool,c++,echo '#include "client/include/commclient.h"' | c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ -I. -Iclient/include -)
	@echo '#include "client/include/commclient.h"' | $(CC) -std=c99 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c -I. -Iclient/include -
check-tidy: | $(PROTO_HEADERS)
	$(call with_llvm,clang-tidy,printf '%s\n' $(TIDY_FILES) | xargs -P$$(nproc) -n4 sh -c \
	    'clang-tidy --quiet "$$@" -- -std=gnu17 $(subst ','\'',$(CPPFLAGS_ALL)) -Iclient/include 2>/dev/null' clang-tidy)

lint: check-layers check-sizes check-format check-shell check-man check-units check-library check-tidy ## check formatting, layers, sizes, scripts, manual pages, units and the code with clang-tidy

.PHONY: tests test test-deps test-python bench-python check-abi check-all test-unit test-sim check-sim check-sim-faults test-system check-attacks check-chaos check-outages check-recovery check-service check-arm64 test-memory test-threads check-gpu bench-gpu gpu-bundle check-asan check-tsan check-threads check-failures run-failures hops run-hops fuzz fuzz-merge fuzz-runtime fuzz-programs bench bench-deps bench-peers bench-messages bench-ab \
    check-layers check-sizes check-format format check-shell check-man check-units check-library check-tidy lint
