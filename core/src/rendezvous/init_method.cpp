// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/init_method.hpp"

#include <limits>
#include <string_view>

#include "environment.hpp"
#include "error.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

constexpr const char* kForms = "env://, tcp://host:port[?rank=R&world_size=W] or file:///path";

void parse_argument(const std::string& argument, const std::string& text, InitMethod& method) {
  const size_t equals = argument.find('=');
  const std::string key = argument.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
  const std::string what = fmt::format("{} of init method {}", key, quoted(text));
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (key == "rank") {
    method.rank = static_cast<int32_t>(parse_number(what, value, 0, kMost));
  } else if (key == "world_size") {
    method.world_size = static_cast<int32_t>(parse_number(what, value, 1, kMost));
  } else {
    fail(BP_INVALID, "init method {} has an unknown argument {}; use rank or world_size", quoted(text), quoted(key));
  }
}

void parse_query(std::string_view query, const std::string& text, InitMethod& method) {
  while (!query.empty()) {
    const size_t end = query.find('&');
    parse_argument(std::string(query.substr(0, end)), text, method);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
  }
}

}  // namespace

void parse_address(const std::string& what, const std::string& prefix, const std::string& place, InitMethod& method) {
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0)
    fail(BP_INVALID, "{} needs a host and a port: {}host:port", what, prefix);
  method.scheme = InitMethod::Scheme::kTcp;
  method.host = place.substr(0, colon);
  if (method.host.front() == '[' && method.host.back() == ']') {
    method.host = method.host.substr(1, method.host.size() - 2);
  } else if (method.host.find(':') != std::string::npos) {
    fail(BP_INVALID, "{} needs brackets around its IPv6 address: {}[::1]:port", what, prefix);
  }
  if (method.host.empty()) fail(BP_INVALID, "{} has an empty host", what);
  method.port = parse_port("the port of " + what, place.substr(colon + 1));
}

InitMethod parse_init_method(const std::string& text) {
  const size_t separator = text.find("://");
  if (separator == std::string::npos) fail(BP_INVALID, "init method {} is not valid; use {}", quoted(text), kForms);
  const std::string scheme = text.substr(0, separator);
  std::string place = text.substr(separator + 3);
  InitMethod method;
  const size_t question = place.find('?');
  if (question != std::string::npos) {
    parse_query(std::string_view(place).substr(question + 1), text, method);
    place.resize(question);
  }
  if (scheme == "env") {
    if (!place.empty())
      fail(BP_INVALID, "init method {} has an address; write env://, which reads MASTER_ADDR and MASTER_PORT",
           quoted(text));
  } else if (scheme == "tcp") {
    parse_address("init method " + quoted(text), "tcp://", place, method);
  } else if (scheme == "file") {
    method.scheme = InitMethod::Scheme::kFile;
    method.path = place;
    if (place.empty() || place.front() != '/' || place.back() == '/') {
      fail(BP_INVALID, "init method {} needs the absolute path of a file: file:///path", quoted(text));
    }
  } else {
    fail(BP_INVALID, "init method {} is not valid; use {}", quoted(text), kForms);
  }
  return method;
}

}  // namespace backplane::core
