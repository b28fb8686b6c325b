// SPDX-License-Identifier: Apache-2.0
//
// The syntax of a choice of backends:
//
//     selection = part *("," part)
//     part      = [device ":"] backend ["+" backend]
//     backend   = name ["?" key "=" value *("&" key "=" value)]
//     device    = "cpu" | "cuda"
//
// `gloo`, `gloo?iface=eth0&threads=2`, `cpu:gloo,cuda:nccl`, `shm+gloo?iface=eth0`. A part without a device serves
// every kind of memory that no other part names. In a part with two backends, the first connects the ranks of each host
// and the second one the hosts. Values escape bytes as %2C, among them `,`, `&`, `+` and `%`. %r and %g, the rank and
// the group in paths of layers, stay as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "environment.hpp"
#include "options/option_value.hpp"

namespace backplane::core {

struct SelectionPart {
  std::optional<uint32_t> memory;           // BP_HOST or BP_CUDA; none: every kind that no other part names
  std::string name;                         // lower case
  KeyValues options;                        // as given
  std::vector<SelectionPart> between = {};  // at most one: the backend between hosts
};

// BP_INVALID names the wrong part and what to write instead.
std::vector<SelectionPart> parse_selection(std::string_view text);

// The choice of a worker: one backend, and no device. It is no composite, so that a `+` belongs to a value:
// `tensorpipe?transports=shm+uv`.
SelectionPart parse_rpc_selection(std::string_view text);

// BACKPLANE_LAYERS: the same without devices, `validate,trace`; the first is the outermost. Empty: none.
std::vector<SelectionPart> parse_layers(std::string_view text);

// `requested`, else BACKPLANE_BACKEND, else "auto".
std::string selected_backend(const char* requested);
// `requested`, else the environment variable. Empty if neither is set. BP_INVALID if the process runs secure and the
// variable has options.
std::string requested_or(const char* requested, const char* variable, bool secure = runs_secure());

}  // namespace backplane::core
