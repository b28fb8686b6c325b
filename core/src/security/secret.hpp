// SPDX-License-Identifier: Apache-2.0
//
// The job's secret, which only its ranks and launchers know. A process that has one is in secure mode: both ends of a
// TCP store's connection prove the secret to each other (handshake.hpp), and backends must authenticate their peers.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace backplane::core {

// Bytes of a secret without the newline at its end. It must be random: an attacker who records a handshake can try
// guesses.
inline constexpr size_t kMinSecretSize = 16;
inline constexpr size_t kMaxSecretSize = 1024;

inline constexpr size_t kKeySize = 32;

// A key. The destructor erases it from memory.
class Key {
 public:
  Key() = default;
  ~Key();
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, kKeySize> bytes_{};
};

// A hash of the secret. Immutable; any thread may use it.
class Secret {
 public:
  // Ignores one newline at the end. BP_INVALID if the size is not allowed; the text contains `where` and no byte of the
  // secret.
  Secret(std::string_view bytes, const std::string& where);
  const Key& key() const { return key_; }

 private:
  Key key_;
};

// The name of the variable that makes this process secure: BACKPLANE_SECRET_FILE (a path) or BACKPLANE_SECRET_FD (an
// open descriptor, which several processes may read). Empty if neither is set.
std::string secret_variable();

// How to start the job without a secret, as the end of a sentence: "unset BACKPLANE_SECRET_FILE".
std::string without_secret_advice();

// The secret that the variable names, null if there is none. BP_INVALID if both variables are set, the file is not a
// regular one of this user, other users can read or write it, or the size is not allowed.
std::shared_ptr<const Secret> environment_secret();

}  // namespace backplane::core
