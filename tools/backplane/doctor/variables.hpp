// SPDX-License-Identifier: Apache-2.0
//
// The environment variables that backplane doctor knows.
#pragma once

#include <array>
#include <string_view>

namespace backplane::tool {

// Those of Backplane. A test compares them with share/doc/operations.md.
constexpr std::array<std::string_view, 25> kVariables = {"BACKPLANE_ALLOW_UNSAFE_PLUGINS",
                                                         "BACKPLANE_BACKEND",
                                                         "BACKPLANE_FINGERPRINT",
                                                         "BACKPLANE_HEARTBEAT_INTERVAL",
                                                         "BACKPLANE_HEARTBEAT_LIMIT",
                                                         "BACKPLANE_IMAGINED_HOSTS",
                                                         "BACKPLANE_ISOLATE",
                                                         "BACKPLANE_JOB_ID",
                                                         "BACKPLANE_LAYERS",
                                                         "BACKPLANE_LOG",
                                                         "BACKPLANE_MASTER_PORT",
                                                         "BACKPLANE_MPI_LIBRARY",
                                                         "BACKPLANE_NCCL_LIBRARY",
                                                         "BACKPLANE_PLUGINS_ALLOW",
                                                         "BACKPLANE_PLUGINS_DENY",
                                                         "BACKPLANE_PLUGIN_PATH",
                                                         "BACKPLANE_PYTHON",
                                                         "BACKPLANE_RANK_ENV",
                                                         "BACKPLANE_RPC_BACKEND",
                                                         "BACKPLANE_SECRET_FD",
                                                         "BACKPLANE_SECRET_FILE",
                                                         "BACKPLANE_STORE",
                                                         "BACKPLANE_STORE_HOSTED",
                                                         "BACKPLANE_TRACE_DIR",
                                                         "BACKPLANE_TUNING_FILE"};

// Prefixes of the variables that are compared between ranks: Backplane's and those of the libraries below its backends.
constexpr std::array<std::string_view, 8> kComparedPrefixes = {"BACKPLANE_", "NCCL_", "GLOO_",  "TP_",
                                                               "UCX_",       "FI_",   "I_MPI_", "OMPI_MCA_"};

}  // namespace backplane::tool
