"""The commands of `understudy`, a module for one or for a few that belong together; `group` names them all."""
