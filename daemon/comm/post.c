#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_tree.h"
#include "proto/frame.h"

/* Messages that wait for the connection to their node. */

struct comms_post {
    struct comms_post *prev, *next; /* in comms->posts, the oldest first */
    uint32_t node;                  /* the mesh's index, or MESH_NODE_OWN */
    uint64_t until_ns;              /* then it is dropped: the node counts as lost by then */
    size_t size_bytes;
    uint8_t bytes[];
};

static void post_free(struct comms *comms, struct comms_post *post)
{
    DL_DELETE(comms->posts, post);
    comms->posts_bytes -= post->size_bytes;
    if (post->node != MESH_NODE_OWN) {
        mesh_unneed(comms->mesh, post->node, MESH_NEED_CALL);
    }
    free(post);
}

void comms_post_packed(struct comms *comms, uint32_t node, const uint8_t *bytes, size_t size_bytes)
{
    bool own = node == MESH_NODE_OWN;
    if (!own && mesh_node_is_up(comms->mesh, node)) {
        enum status status = mesh_send_packed(comms->mesh, node, bytes, size_bytes);
        (void)status; /* if this fails the node is lost: node_down has come, or will */
        return;
    }
    struct comms_post *post =
        comms->posts_bytes + size_bytes <= COMMS_POSTS_MAX_BYTES ? malloc(sizeof *post + size_bytes) : NULL;
    if (post == NULL || (!own && mesh_node_is_removed(comms->mesh, node))) {
        free(post);
        return;
    }
    post->node = node;
    post->size_bytes = size_bytes;
    post->until_ns = time_after(comms->now_ns, mesh_patience_ns(comms->mesh) + TIME_S);
    memcpy(post->bytes, bytes, size_bytes);
    DL_APPEND(comms->posts, post);
    comms->posts_bytes += size_bytes;
    if (!own) {
        mesh_need(comms->mesh, node, MESH_NEED_CALL);
    }
}

void comms_post(struct comms *comms, uint32_t node, const Commd__Mesh__Message *message)
{
    uint8_t packed[FRAME_MAX_BYTES];
    size_t size_bytes = commd__mesh__message__get_packed_size(message);
    if (size_bytes > 0 && size_bytes <= sizeof packed) {
        commd__mesh__message__pack(message, packed);
        comms_post_packed(comms, node, packed, size_bytes);
    }
}

void comms_posts_node_up(struct comms *comms, uint32_t node)
{
    struct comms_post *post, *next;
    DL_FOREACH_SAFE(comms->posts, post, next)
    {
        if (post->node == node) {
            enum status status = mesh_send_packed(comms->mesh, node, post->bytes, post->size_bytes);
            (void)status; /* if this fails the node is lost */
            post_free(comms, post);
        }
    }
}

uint64_t comms_posts_deadline_ns(const struct comms *comms)
{
    const struct comms_post *post;
    uint64_t deadline_ns = comms->posts != NULL ? comms->posts->until_ns : TIME_NEVER;
    DL_FOREACH(comms->posts, post)
    {
        deadline_ns = post->node == MESH_NODE_OWN ? 0 : deadline_ns;
    }
    return deadline_ns;
}

/* A message of this node as a place to this node as a guest. */
static void deliver_own(struct comms *comms, const struct comms_post *post, uint64_t now_ns)
{
    Commd__Mesh__Message *message = commd__mesh__message__unpack(NULL, post->size_bytes, post->bytes);
    if (message != NULL) {
        comms_control_received(comms, MESH_NODE_OWN, message, now_ns);
        commd__mesh__message__free_unpacked(message, NULL);
    }
}

void comms_posts_tick(struct comms *comms, uint64_t now_ns)
{
    struct comms_post *post, *next;
    struct comms_post *own = NULL;
    DL_FOREACH_SAFE(comms->posts, post, next)
    {
        if (post->node == MESH_NODE_OWN) {
            DL_DELETE(comms->posts, post);
            DL_APPEND(own, post);
        } else if (now_ns >= post->until_ns) {
            post_free(comms, post);
        }
    }
    while (own != NULL) {
        post = own;
        DL_DELETE(own, post);
        comms->posts_bytes -= post->size_bytes;
        deliver_own(comms, post, now_ns);
        free(post);
    }
}

void comms_posts_free(struct comms *comms)
{
    while (comms->posts != NULL) {
        post_free(comms, comms->posts);
    }
}
