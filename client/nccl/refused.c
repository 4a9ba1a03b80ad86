#include "client/nccl/failure.h"

/*
 * The names of NCCL 2.32 that this library exports and refuses, so that a program that looks up all names can
 * be loaded. The arguments are not looked at, so none are declared.
 */

#define REFUSED(X)                                                                                           \
    X(ncclAllGatherConfig)                                                                                   \
    X(ncclAllReduceConfig)                                                                                   \
    X(ncclAlltoAllConfig)                                                                                    \
    X(ncclBroadcastConfig)                                                                                   \
    X(ncclCommMemStats)                                                                                      \
    X(ncclCommQueryProperties)                                                                               \
    X(ncclCommResume)                                                                                        \
    X(ncclCommSuspend)                                                                                       \
    X(ncclDevCommCreate)                                                                                     \
    X(ncclDevCommDestroy)                                                                                    \
    X(ncclGatherConfig)                                                                                      \
    X(ncclGetCftDeviceLeInfo)                                                                                \
    X(ncclGetLsaDevicePointer)                                                                               \
    X(ncclGetLsaMultimemDevicePointer)                                                                       \
    X(ncclGetMultimemDeviceLeInfo)                                                                           \
    X(ncclGetMultimemDevicePointer)                                                                          \
    X(ncclGetPeerDeviceLeInfo)                                                                               \
    X(ncclGetPeerDevicePointer)                                                                              \
    X(ncclGinBarrierCreateRequirement)                                                                       \
    X(ncclGinInboxA2ACreateRequirement)                                                                      \
    X(ncclGinOutboxCreateRequirement)                                                                        \
    X(ncclLLA2ACreateRequirement)                                                                            \
    X(ncclLsaBarrierCreateRequirement)                                                                       \
    X(ncclParamBind)                                                                                         \
    X(ncclParamDumpAll)                                                                                      \
    X(ncclParamGet)                                                                                          \
    X(ncclParamGetAllParameterKeys)                                                                          \
    X(ncclParamGetI16)                                                                                       \
    X(ncclParamGetI32)                                                                                       \
    X(ncclParamGetI64)                                                                                       \
    X(ncclParamGetI8)                                                                                        \
    X(ncclParamGetParameter)                                                                                 \
    X(ncclParamGetStr)                                                                                       \
    X(ncclParamGetU16)                                                                                       \
    X(ncclParamGetU32)                                                                                       \
    X(ncclParamGetU64)                                                                                       \
    X(ncclParamGetU8)                                                                                        \
    X(ncclPutSignal)                                                                                         \
    X(ncclReduceConfig)                                                                                      \
    X(ncclReduceScatterConfig)                                                                               \
    X(ncclScatterConfig)                                                                                     \
    X(ncclSetEncryption)                                                                                     \
    X(ncclSignal)                                                                                            \
    X(ncclWaitSignal)                                                                                        \
    X(ncclWinGetUserPtr)

#define REFUSE(name)                                                                                         \
    NCCL_EXPORT(ncclResult_t, name, void)                                                                    \
    {                                                                                                        \
        return failure_set(NCCL_INVALID_USAGE, "%s: commd's libnccl does not offer this call", #name);       \
    }
REFUSED(REFUSE)

/* ncclTeam_t: no rank, and so no team. */
struct team {
    int size;
    int rank;
    int stride;
};
#define TEAMS(X) X(ncclTeamCft) X(ncclTeamCftMultimem) X(ncclTeamLsa) X(ncclTeamRail) X(ncclTeamWorld)
#define NO_TEAM(name)                                                                                        \
    NCCL_EXPORT(struct team, name, void)                                                                     \
    {                                                                                                        \
        (void)failure_set(NCCL_INVALID_USAGE, "%s: commd's libnccl does not offer this call", #name);        \
        return (struct team){0};                                                                             \
    }
TEAMS(NO_TEAM)

/* These return a number that is no result. */
#define NO_NUMBER(name)                                                                                      \
    NCCL_EXPORT(int, name, void)                                                                             \
    {                                                                                                        \
        (void)failure_set(NCCL_INVALID_USAGE, "%s: commd's libnccl does not offer this call", #name);        \
        return -1;                                                                                           \
    }
NO_NUMBER(ncclTeamRankToLsa)
NO_NUMBER(ncclTeamRankToWorld)
NO_NUMBER(ncclLLA2ACalcSlots)

/* The library has no log of its own: COMM_DEBUG is read once. */
NCCL_EXPORT(void, ncclResetDebugInit, void)
{
}

__attribute__((visibility("default"))) void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void)
{
}

/* By this name commd knows the library, and refuses it as its own NCCL: daemon/gpu/nccl_library.c. */
__attribute__((visibility("default"))) extern const int commd_nccl_drop_in;
const int commd_nccl_drop_in = 1;
