// SPDX-License-Identifier: Apache-2.0
//
// Decides which clients may use a TCP store, from their Hello. Has no sockets. Not synchronised.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "backplane/base/log_limit.hpp"
#include "liveness/process_identity.hpp"
#include "store/store.hpp"
#include "store/table.hpp"
#include "store/wire.hpp"

namespace backplane::core {

class Admission {
 public:
  // `where`: the address of the store, for messages.
  Admission(const TcpStoreOptions& options, std::string where) : options_(options), where_(std::move(where)) {}

  struct JobState {
    bool closing = false;     // the store is about to end
    Bytes failure = nullptr;  // why the job did not start, null if it did
  };

  // `proven`: the client has proven the secret.
  Welcome check(const Hello& hello, bool proven, const JobState& job);
  Welcome refuse_wrong_secret();

 private:
  Welcome refuse_client(const std::string& whom, const std::string& text);

  const TcpStoreOptions& options_;
  const std::string where_;
  const std::string identity_ = process_identity();
  std::set<int32_t> admitted_;  // ranks
  base::LogLimit warnings_{std::chrono::seconds(10)};
};

}  // namespace backplane::core
