PROTO_MESSAGES := $(wildcard proto/*.proto)
PROTO_GENERATED := $(PROTO_MESSAGES:%.proto=$(BUILD)/gen/%.pb-c.c)
.SECONDARY: $(PROTO_GENERATED)
PROTO_HEADERS := $(PROTO_GENERATED:.c=.h)
PROTO_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard proto/*.c)) $(PROTO_GENERATED:.c=.o)

$(BUILD)/gen/%.pb-c.c $(BUILD)/gen/%.pb-c.h &: %.proto
	$(Q)mkdir -p $(BUILD)/gen && echo "  PROTOC  $<" && protoc-c --c_out=$(BUILD)/gen $<

$(BUILD)/gen/%.pb-c.o: $(BUILD)/gen/%.pb-c.c $(FLAGS_STAMP)
	$(Q)echo "  CC      $<" && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) -w -MMD -MP -c -o $@ $<
