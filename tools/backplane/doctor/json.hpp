// SPDX-License-Identifier: Apache-2.0
//
// JSON of what backplane doctor observes and reports: for the job's store, and for --json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/failure.hpp"
#include "doctor/facts.hpp"
#include "doctor/finding.hpp"
#include "doctor/network.hpp"

namespace backplane::tool {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, address)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Endpoint, interface, port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Path, from, to, at, failure, latency, bandwidth, clock_offset)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BackendFact, id, version, viable, remark)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RejectedFile, file, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Facts, rank, host, identity, version, environment, is_whole, name_addresses,
                                   interfaces, store_address, shm_failure, shm_free, open_files, processes,
                                   address_space, file_size, core_size, processors, processor_quota,
                                   memory_read_failure, ptrace_scope, clock_is_synchronised, gpus, store_failure,
                                   backends, rejected)

inline const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "";
}

inline void to_json(nlohmann::json& json, const Finding& finding) {
  json = {{"severity", severity_name(finding.severity)},
          {"check", finding.check},
          {"hosts", finding.hosts},
          {"text", finding.text}};
}

// Names and texts may have any bytes; those that are not UTF-8 are replaced.
inline std::string dump(const nlohmann::json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Throws Failure(kFailed) if the text is not such a value.
template <typename Value>
Value parse(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<Value>();
  } catch (const nlohmann::json::exception&) {
    throw Failure(kFailed, "a rank reported in another format; install the same version of Backplane on all hosts");
  }
}

}  // namespace backplane::tool
