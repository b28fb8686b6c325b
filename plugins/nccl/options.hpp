// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "backplane/sdk/sdk.hpp"

namespace backplane::nccl {

inline constexpr std::array kOptions = {
    sdk::option({.key = "device",
                 .default_value = "",
                 .help = "ordinal of this rank's device; 'rank': the rank modulo the number of devices; empty: the "
                         "device that the program names (GroupOptions::device)"}),
    sdk::option({.type = BP_OPTION_BOOL,
                 .key = "stage",
                 .default_value = "false",
                 .help = "also accept host buffers, and copy them to the device and back",
                 .flags = BP_OPTION_SAME_ON_ALL}),
    sdk::option({.type = BP_OPTION_INT,
                 .key = "max_ctas",
                 .default_value = "0",
                 .help = "limit of NCCL's thread blocks on the device; 0: none",
                 .min = 0,
                 .max = 64}),
    sdk::option({.key = "address",
                 .default_value = "",
                 .help = "numeric address of this host, reachable by the other ranks, over which messages are matched; "
                         "empty: the one from which this rank reaches the store, else 127.0.0.1; NCCL chooses its own "
                         "(NCCL_SOCKET_IFNAME)"}),
    sdk::option({.key = "library",
                 .default_value = "",
                 .help = "NCCL's file; empty: BACKPLANE_NCCL_LIBRARY, else libnccl.so.2"}),
};

// The device of this rank, of `count` devices. Throws BP_INVALID if neither the option nor the program names a valid
// one.
int device_of(const sdk::Context& context, int count);
inline int max_ctas_of(const sdk::Context& context) { return static_cast<int>(context.options.integer("max_ctas")); }

}  // namespace backplane::nccl
