// SPDX-License-Identifier: Apache-2.0
#include "store/admission.hpp"

#include <utility>

#include "log.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kSameSecret = "give the launcher and all ranks the same BACKPLANE_SECRET_FILE";

bool is_same_job(const std::string& one, const std::string& other) {
  if (one == other) return true;
  const std::string& longer = one.empty() ? other : one;
  return (one.empty() || other.empty()) && longer.starts_with(kDerivedJobId);
}

Welcome refusal(int32_t status, std::string text) { return {.status = status, .text = std::move(text)}; }

}  // namespace

Welcome Admission::check(const Hello& hello, bool proven, const JobState& job) {
  if (options_.secret != nullptr && !proven) {
    return refuse_client("which has no secret", fmt::format("has a job secret, this rank has none; {}", kSameSecret));
  }
  if (hello.version == kSecureVersion) {
    return refuse_client("which has a secret", fmt::format("has no job secret, this rank has one; {}", kSameSecret));
  }
  if (hello.version != kProtocolVersion) {
    return refusal(BP_INVALID,
                   fmt::format("the store at {} speaks protocol {}, this rank speaks {}; start all ranks with the same "
                               "version of Backplane",
                               where_, kProtocolVersion, hello.version));
  }
  if (!is_same_job(hello.job_id, options_.job_id)) {
    // The reply must not contain the store's job id: a process that knows it may use a store without a secret.
    return refuse_client(fmt::format("of job {}; this job is {}", quoted(hello.job_id), quoted(options_.job_id)),
                         fmt::format("belongs to another job, this rank is of job {}; give each job its own "
                                     "MASTER_PORT and all its ranks the same BACKPLANE_JOB_ID",
                                     quoted(hello.job_id)));
  }
  if (hello.world_size > 0 && options_.world_size > 0 && hello.world_size != options_.world_size) {
    return refusal(BP_INVALID,
                   fmt::format("the store at {} serves a job of {} ranks, but rank {} was started with a world size of "
                               "{}; start all ranks with the same one",
                               where_, options_.world_size, hello.rank, hello.world_size));
  }
  // A rank that took part in the failed start waits for the store of the next start.
  if (job.failure && hello.rank >= 0 && admitted_.count(hello.rank) == 0) {
    return refusal(BP_PEER_LOST,
                   fmt::format("the job at {} did not start: {}", where_, job.failure->substr(0, kMaxNoticeSize)));
  }
  if (job.closing) return refusal(BP_AGAIN, fmt::format("the store at {} is about to end", where_));
  if (hello.rank >= 0) admitted_.insert(hello.rank);
  return {.server_rank = options_.server_rank, .server_identity = identity_, .heartbeat = *options_.heartbeat};
}

Welcome Admission::refuse_wrong_secret() {
  return refuse_client("which has another secret",
                       fmt::format("has another job secret than this rank; {}", kSameSecret));
}

// Refuses a client without details of the job. The log is limited, because any client can cause it.
Welcome Admission::refuse_client(const std::string& whom, const std::string& text) {
  log(warnings_, BP_LOG_WARN, "the store at {} refused a client {}", where_, whom);
  return refusal(BP_INVALID, fmt::format("the store at {} {}", where_, text));
}

}  // namespace backplane::core
