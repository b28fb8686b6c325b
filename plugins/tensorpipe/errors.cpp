// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <tensorpipe/tensorpipe.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace backplane::tensorpipe {

bool text_says_peer_gone(const std::string& text) {
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::array kWords = {
      "eof",          "end of file",        "econnreset",         "connection reset", "epipe",     "broken pipe",
      "econnrefused", "connection refused", "connection aborted", "not connected",    "timed out", "unreachable"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&lower](const char* words) { return lower.find(words) != std::string::npos; });
}

bool is_peer_gone(const ::tensorpipe::Error& error) {
  return error.isOfType<::tensorpipe::EOFError>() || error.isOfType<::tensorpipe::PipeClosedError>() ||
         error.isOfType<::tensorpipe::transport::ConnectionClosedError>() || text_says_peer_gone(error.what());
}

sdk::Failure failure_of(const ::tensorpipe::Error& error, int peer) {
  if (is_peer_gone(error)) {
    return sdk::Failure(BP_PEER_LOST,
                        "the connection to rank " + std::to_string(peer) + " broke (" + error.what() + ")", peer);
  }
  return sdk::Failure(BP_INTERNAL, "the pipe to rank " + std::to_string(peer) + " failed: " + error.what(), peer);
}

}  // namespace backplane::tensorpipe
