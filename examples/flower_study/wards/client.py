"""The app of a site: its node's configuration says where study.toml and site.toml are."""

from fedconvex.engines.flower import study_client_app

app = study_client_app()
