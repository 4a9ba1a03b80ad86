#include "daemon/comm/links.h"

#include "daemon/exec/rails.h"

/* Between the mesh, which owns the links of all rails, and the exec, which uses them. */

_Static_assert(MESH_RAILS_MAX == EXEC_RAILS_MAX, "both have the same rails");

static void links_need(void *context, uint32_t peer, uint32_t rail_count)
{
    mesh_need_rails(context, peer, rail_count);
}

static void links_unneed(void *context, uint32_t peer, uint32_t rail_count)
{
    mesh_unneed_rails(context, peer, rail_count);
}

static const char *links_missing(void *context, uint32_t peer, uint32_t rail)
{
    return mesh_rail_missing(context, peer, rail);
}

static void links_rail_up(void *context)
{
    exec_link_up(context);
}

static void links_rail_lost(void *context, uint32_t node, uint32_t rail, const struct error *cause,
                            uint64_t now_ns)
{
    exec_link_lost(context, rail, node, cause, now_ns);
}

static void links_streams_lost(void *context, uint32_t node, uint32_t rail)
{
    exec_link_streams_lost(context, rail, node);
}

enum status links_join(struct mesh *mesh, struct exec *exec, const struct mesh_rails_options *options,
                       struct error *error)
{
    struct exec_links links = {
        .context = mesh, .need = links_need, .unneed = links_unneed, .missing = links_missing};
    struct mesh_rails_options with_handler = *options;
    with_handler.handler = (struct mesh_rail_handler){.context = exec,
                                                      .rail_up = links_rail_up,
                                                      .rail_lost = links_rail_lost,
                                                      .streams_lost = links_streams_lost};
    exec_set_links(exec, &links);
    return mesh_set_rails(mesh, &with_handler, error);
}
