#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/types.h"
#include "tests/fuzz/client_node.h"

#define VICTIM_UID 1000
#define VICTIM_BYTES 4096 /* input, output, and bytes that nobody may touch */
#define VICTIM_ELEMENTS 64
#define VICTIM_TURNS 16

static uint8_t pattern[VICTIM_BYTES];

void fuzz_victim_start(struct fuzz_victim *victim, struct fuzz_node *node, bool rings)
{
    victim->fd = memfd_create("victim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_require(victim->fd >= 0 && ftruncate(victim->fd, VICTIM_BYTES) == 0);
    fuzz_require(fcntl(victim->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    victim->bytes = mmap(NULL, VICTIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, victim->fd, 0);
    fuzz_require(victim->bytes != MAP_FAILED);
    for (size_t i = 0; pattern[0] == 0 && i < VICTIM_BYTES; i++) {
        pattern[i] = (uint8_t)(i * 7 + 3);
    }
    memcpy(victim->bytes, pattern, VICTIM_BYTES);
    fuzz_client_connect(&victim->client, node, VICTIM_UID);
    fuzz_client_hello(&victim->client, rings);
    fuzz_node_turn(node);
    (void)fuzz_client_read(&victim->client);
    fuzz_require((victim->client.shared != NULL) == rings);
    Commd__Client__MemRegister memory = COMMD__CLIENT__MEM_REGISTER__INIT;
    memory.size_bytes = VICTIM_BYTES;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request.mem_register = &memory;
    fuzz_require(fuzz_client_request(&victim->client, &request, victim->fd));
    Commd__Client__CommInit comm = COMMD__CLIENT__COMM_INIT__INIT;
    comm.name = (char *)"victim";
    comm.size = 1;
    comm.device = -1;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &comm;
    fuzz_require(fuzz_client_request(&victim->client, &request, -1));
    fuzz_node_turns(node, 3);
}

void fuzz_victim_end(struct fuzz_victim *victim, struct fuzz_node *node)
{
    uint8_t expected[VICTIM_BYTES];
    struct submit_record submit;
    submit_record_begin(&submit, RECORD_OPERATION, 0);
    submit.ticket = 1;
    submit.terms.kind = OP_KIND_ALL_REDUCE;
    submit.terms.dtype = DTYPE_U32;
    submit.terms.count_elements = VICTIM_ELEMENTS;
    submit_record_add(&submit, RECORD_INPUT, 0, 0, 0);
    submit_record_add(&submit, RECORD_OUTPUT, 0, VICTIM_BYTES / 2, 0);
    fuzz_require(
        fuzz_client_send(&victim->client, (const uint8_t *)&submit, submit_record_bytes(&submit), NULL, 0));
    fuzz_node_turns(node, VICTIM_TURNS);
    (void)fuzz_client_read(&victim->client);
    fuzz_require(!victim->client.ended && victim->client.completes[1] == 1);
    fuzz_require(victim->client.not_ok == 0);
    memcpy(expected, pattern, sizeof expected);
    memcpy(expected + sizeof expected / 2, pattern, VICTIM_ELEMENTS * sizeof(uint32_t));
    fuzz_require(memcmp(victim->bytes, expected, sizeof expected) == 0);
    fuzz_client_check_answered(&victim->client);
    fuzz_client_close(&victim->client);
    fuzz_node_turn(node);
    fuzz_require(munmap(victim->bytes, VICTIM_BYTES) == 0);
    /* succeeds only if nobody else maps it */
    fuzz_require(fcntl(victim->fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    close(victim->fd);
}
